{{- define "mtp.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 32 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 32 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "mtp.chosen" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mtp.labels" -}}
{{ include "mtp.chosen" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* A pool's pods are chosen by these; `pool` is a list of the chart's context and the pool. */}}
{{- define "mtp.pool.chosen" -}}
{{ include "mtp.chosen" (index . 0) }}
app.kubernetes.io/component: vllm
mtp-gateway/pool: {{ (index . 1).name }}
{{- end }}

{{- /* The same as one label selector. */}}
{{- define "mtp.pool.selector" -}}
{{- $parts := list }}
{{- range $key, $value := fromYaml (include "mtp.pool.chosen" .) }}{{ $parts = append $parts (printf "%s=%s" $key $value) }}{{ end }}
{{- join "," $parts }}
{{- end }}

{{- /* A pool's limits.prefill: 1.5 steps of its engines; empty where their arguments do not say a step's size. */}}
{{- define "mtp.pool.prefill" -}}
{{- $step := "" }}
{{- $before := "" }}
{{- range .args }}
  {{- if eq $before "--max-num-batched-tokens" }}{{ $step = . }}{{ end }}
  {{- if hasPrefix "--max-num-batched-tokens=" . }}{{ $step = trimPrefix "--max-num-batched-tokens=" . }}{{ end }}
  {{- $before = . }}
{{- end }}
{{- if regexMatch "^[0-9]+$" $step }}{{ div (mul 3 (int64 $step)) 2 }}{{ end -}}
{{- end }}

{{- define "mtp.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "mtp.redis" -}}
{{- if .Values.redis.enabled }}own{{ else if .Values.redis.existing.secret }}existing{{ end -}}
{{- end }}
