# The Go module that Kubernetes' programs are built in; source it after env.sh.
# shellcheck shell=bash

# kubernetes_module: prints its go.mod. k8s.io/kubernetes asks for its staging modules at v0.0.0 and replaces them by
# folders of its own repository, which the module proxy does not carry: the published v0.MINOR.PATCH stands in for each.
kubernetes_module() {
  local staging=v0.${KUBE_VERSION#v1.} gomod
  gomod=$(cd / && go mod download -json "k8s.io/kubernetes@$KUBE_VERSION" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  printf 'module meshtrain.dev/kubernetes-tools\n\ngo 1.25.0\n\n'
  printf 'require (\n\tk8s.io/kubernetes %s\n\tgo.etcd.io/etcd/server/v3 %s\n\thelm.sh/helm/v3 %s\n)\n\n' \
    "$KUBE_VERSION" "$ETCD_VERSION" "$HELM_VERSION"
  sed -n 's/^\s*\(k8s\.io\/[a-z0-9-]*\) v0\.0\.0\( .*\)\?$/replace \1 => \1 '"$staging"'/p' "$gomod" | sort -u
}

# kubernetes_go_build OUT PACKAGE...: in the folder of that module.
kubernetes_go_build() {
  local out=$1 minor=${KUBE_VERSION#v1.} version=k8s.io/component-base/version
  minor=${minor%%.*}
  shift
  go list -mod=mod -deps "$@" >deps.txt 2>download.log || { tail download.log >&2; return 1; }
  CGO_ENABLED=0 go build -mod=mod -trimpath -tags providerless ${JOBS:+-p "$JOBS"} -o "$out" -ldflags \
    "-s -w -X $version.gitVersion=$KUBE_VERSION -X $version.gitMajor=1 -X $version.gitMinor=$minor -X k8s.io/client-go/pkg/version.gitVersion=$KUBE_VERSION" \
    "$@"
}
