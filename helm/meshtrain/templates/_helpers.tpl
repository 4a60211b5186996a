{{- define "meshtrain.name" -}}
{{- if contains "meshtrain" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-meshtrain" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* What belongs to no namespace carries the name of the release's, where it is for some namespaces, after a point, which is in
neither: with a hyphen `a` in `b-c` and `a-b` in `c` would be one. */}}
{{- define "meshtrain.global" -}}
{{ include "meshtrain.name" . }}{{ if eq .Values.scope "namespace" }}.{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- /* Whose jobs the operator runs, as a JSON list; empty: those of all namespaces. */}}
{{- define "meshtrain.namespaces" -}}
{{- if and (eq .Values.scope "cluster") .Values.namespaces }}
{{- fail (printf "namespaces: expected scope: namespace beside a list of them, got: scope: %s" .Values.scope) }}
{{- end }}
{{- ternary (list) (.Values.namespaces | default (list .Release.Namespace)) (eq .Values.scope "cluster") | toJson }}
{{- end }}

{{- define "meshtrain.policy" -}}
{{ include "meshtrain.global" . }}-pods
{{- end }}

{{- define "meshtrain.selector" -}}
app.kubernetes.io/name: meshtrain
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "meshtrain.labels" -}}
{{ include "meshtrain.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "meshtrain.account" -}}
{{ .Values.serviceAccount.name | default (include "meshtrain.name" .) }}
{{- end }}

{{- /* A tag of digits alone comes as a number: from --set as a whole one, from a file as a float, 1.7e+09. */}}
{{- define "meshtrain.image" -}}
{{- $tag := .Values.image.tag }}
{{- if has (kindOf $tag) (list "int64" "float64") }}{{ $tag = int64 $tag | toString }}{{ end }}
{{- .Values.image.repository }}:{{ $tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What the operator may do where jobs live. Secrets are created (a job's token), never read; nothing is executed in pods. */}}
{{- define "meshtrain.rules" -}}
- apiGroups: [meshtrain.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete]   # delete: ttlSecondsAfterFinished
- apiGroups: [meshtrain.dev]
  resources: [trainingjobs/status]
  verbs: [patch]
- apiGroups: [meshtrain.dev]
  resources: [trainingjobs/finalizers]   # to own objects that block the job's deletion
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]   # patch: labels that somebody took away
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims]
  verbs: [get, create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.networkPolicies.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create]
{{- end }}
{{- if eq .Values.gangScheduler "volcano" }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- else if eq .Values.gangScheduler "scheduler-plugins" }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if eq .Values.queue "kueue" }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- end }}

{{- /* What belongs to no namespace: the CRD, to see that it is not older than the operator, and what admissions name. */}}
{{- define "meshtrain.globalRules" -}}
- apiGroups: [apiextensions.k8s.io]   # to see that it is not older than the operator
  resources: [customresourcedefinitions]
  resourceNames: [trainingjobs.meshtrain.dev]
  verbs: [get]
{{- if eq .Values.queue "kueue" }}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list, watch]
{{- end }}
{{- end }}

{{- /* Who may reach the processes of jobs at meshtrain-http, as a JSON list: the operator, for /progress, and scrapers.
A podSelector alone would mean pods of the job's namespace; said here, it means those of the release's. */}}
{{- define "meshtrain.httpPeers" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) }}
{{- $pods := dict "matchLabels" (fromYaml (include "meshtrain.selector" .)) }}
{{- $peers := list (dict "namespaceSelector" $namespace "podSelector" $pods) }}
{{- range .Values.networkPolicies.scrapers }}
{{- $alone := and (kindIs "map" .podSelector) (kindIs "invalid" .namespaceSelector) (kindIs "invalid" .ipBlock) }}
{{- $peers = append $peers (ternary (set (deepCopy .) "namespaceSelector" $namespace) . $alone) }}
{{- end }}
{{- toJson $peers }}
{{- end }}

{{- /* Without openShift the images' own user; there the namespace gives one, which must not be named here. */}}
{{- define "meshtrain.podSecurity" -}}
runAsNonRoot: true
{{- if not .Values.openShift }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "meshtrain.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "meshtrain.policyNamespaces" -}}
{{- with include "meshtrain.namespaces" . | fromJsonArray -}}
matchResources:
  namespaceSelector:
    matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- end -}}
{{- end -}}
