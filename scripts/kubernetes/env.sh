# Settings shared by the scripts of this folder; source it. Everything may be overridden from the environment.
# shellcheck shell=bash
KUBERNETES_SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${KUBE_VERSION:=v1.34.4}"
: "${ETCD_VERSION:=v3.6.5}"
: "${HELM_VERSION:=v3.19.5}"
: "${KWOK_VERSION:=v0.7.0}"
: "${TRAINING_OPERATOR_VERSION:=v1.9.3}"
: "${MESHTRAIN_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/meshtrain}"
# Keyed by every version that goes in: another set of versions is another folder.
: "${KUBE_PREFIX:=$MESHTRAIN_CACHE/kubernetes-$KUBE_VERSION-etcd-$ETCD_VERSION-helm-$HELM_VERSION}"
KUBE_BIN=$KUBE_PREFIX/bin
KWOK_PREFIX=$MESHTRAIN_CACHE/kwok-$KWOK_VERSION
TRAINING_OPERATOR_PREFIX=$MESHTRAIN_CACHE/training-operator-$TRAINING_OPERATOR_VERSION
