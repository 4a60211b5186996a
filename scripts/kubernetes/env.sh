# Settings shared by the scripts of this folder; source it. Everything may be overridden from the environment.
# shellcheck shell=bash
KUBERNETES_SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${KUBE_VERSION:=v1.34.4}"
: "${ETCD_VERSION:=v3.6.5}"
: "${HELM_VERSION:=v3.19.5}"
: "${KWOK_VERSION:=v0.7.0}"
: "${TRAINING_OPERATOR_VERSION:=v1.9.3}"
# What charts are checked with: the validator, and the kinds of the Prometheus operator with what makes CRDs of them.
: "${KUBECONFORM_VERSION:=v0.7.0}"
: "${MONITORING_VERSION:=v0.86.0}"
: "${CONTROLLER_GEN_VERSION:=v0.19.0}"
# What admits jobs by quota, for the test of queues.
: "${KUEUE_VERSION:=v0.17.0}"
# What enforces NetworkPolicies on the nodes.
: "${NETWORK_POLICIES_VERSION:=v0.8.0}"
: "${COREDNS_VERSION:=v1.13.1}"
: "${PROMETHEUS_VERSION:=2.42.0}"   # Debian 12's
: "${CONTAINERD_VERSION:=1.6.20}"   # Debian 12's
: "${MESHTRAIN_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/meshtrain}"
# Keyed by every version that goes in: another set of versions is another folder.
: "${KUBE_PREFIX:=$MESHTRAIN_CACHE/kubernetes-$KUBE_VERSION-etcd-$ETCD_VERSION-helm-$HELM_VERSION}"
KUBE_BIN=$KUBE_PREFIX/bin
KWOK_PREFIX=$MESHTRAIN_CACHE/kwok-$KWOK_VERSION
KUBECONFORM_PREFIX=$MESHTRAIN_CACHE/kubeconform-$KUBECONFORM_VERSION
KUEUE_PREFIX=$MESHTRAIN_CACHE/kueue-$KUEUE_VERSION
NETWORK_POLICIES_PREFIX=$MESHTRAIN_CACHE/network-policies-$NETWORK_POLICIES_VERSION
MONITORING_PREFIX=$MESHTRAIN_CACHE/monitoring-$MONITORING_VERSION-controller-gen-$CONTROLLER_GEN_VERSION
PROMETHEUS_PREFIX=$MESHTRAIN_CACHE/prometheus-$PROMETHEUS_VERSION
PROMETHEUS_BIN=$PROMETHEUS_PREFIX/bin
TRAINING_OPERATOR_PREFIX=$MESHTRAIN_CACHE/training-operator-$TRAINING_OPERATOR_VERSION
# What a node runs: kubelet, kube-proxy and CoreDNS, built; Debian's containerd, runc and CNI plugins, unpacked.
NODE_PREFIX=$MESHTRAIN_CACHE/node-$KUBE_VERSION-coredns-$COREDNS_VERSION
NODE_BIN=$NODE_PREFIX/bin
CONTAINERD_PREFIX=$MESHTRAIN_CACHE/containerd-$CONTAINERD_VERSION
