{{- define "pilothouse.labels" -}}
app.kubernetes.io/name: pilothouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- define "pilothouse.operatorSelector" -}}
app.kubernetes.io/name: pilothouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}
{{- define "pilothouse.operatorName" -}}
{{ .Release.Name }}-operator
{{- end }}
{{- /* The namespaces that the operator watches: a comma list, empty for all. */ -}}
{{- define "pilothouse.watched" -}}
{{- if .Values.watchNamespaces }}{{ join "," (sortAlpha .Values.watchNamespaces) }}{{ else if .Values.namespaced }}{{ .Release.Namespace }}{{ end }}
{{- end }}
{{- /* What the operator may do where runs live; rights are enumerated, no Secret is read. */ -}}
{{- define "pilothouse.operatorRules" -}}
- apiGroups: [pilothouse.dev]
  resources: [workflows, agents, supervisors]
  verbs: [get, list, watch]
- apiGroups: [pilothouse.dev]
  resources: [agentruns]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [pilothouse.dev]
  resources: [workflows/status, agents/status, supervisors/status, agentruns/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
# Whether runs may begin there; in a Role this is the Role's own namespace.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
{{- define "pilothouse.apiName" -}}
{{ .Release.Name }}-api
{{- end }}
{{- /* Whether the operator API is installed: to know its callers it needs a right that no namespace can give. */ -}}
{{- define "pilothouse.apiInstalled" -}}
{{- if and .Values.api.enabled (not (and .Values.namespaced .Values.api.reviewRights)) }}true{{ end }}
{{- end }}
{{- /* What it asks of Redis, on the keys of all namespaces: nothing is written. */ -}}
{{- define "pilothouse.apiRedisRules" -}}
resetchannels %R~ns:* -@all +xrange +xrevrange +xread
{{- end }}
{{- define "pilothouse.apiSelector" -}}
app.kubernetes.io/name: pilothouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: api
{{- end }}
{{- /* What the operator API may do where runs live. What its callers may is asked for each of them. */ -}}
{{- define "pilothouse.apiRules" -}}
- apiGroups: [pilothouse.dev]
  resources: [agentruns]
  verbs: [get, list, watch, patch, approve, limit]
{{- end }}
{{- /* How it asks who calls, and what they may. */ -}}
{{- define "pilothouse.apiReviewRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- /* What a runner's token may do: read runs, and (walled in by the admission policies) report its own. */ -}}
{{- define "pilothouse.runnerRules" -}}
- apiGroups: [pilothouse.dev]
  resources: [agentruns]
  verbs: [get, list, watch]
- apiGroups: [pilothouse.dev]
  resources: [agentruns/status]
  verbs: [patch]
{{- end }}
{{- /* The namespaces where the chart lets runs live: a comma list. */ -}}
{{- define "pilothouse.runnerNamespaces" -}}
{{ join "," (uniq (append (ternary (list) .Values.runner.namespaces .Values.namespaced) .Release.Namespace)) }}
{{- end }}
{{- define "pilothouse.redisName" -}}
{{ .Release.Name }}-redis
{{- end }}
{{- define "pilothouse.redisSelector" -}}
app.kubernetes.io/name: pilothouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end }}
{{- /* Where runners find Redis; empty where journals are not kept there. */ -}}
{{- define "pilothouse.redisUrl" -}}
{{- if .Values.redis.enabled }}redis://{{ include "pilothouse.redisName" . }}.{{ .Release.Namespace }}:6379{{ else }}{{ .Values.redis.url }}{{ end }}
{{- end }}
{{- /* What a runner asks of Redis, on the keys of its namespace: no listing, no flush, no configuration. */ -}}
{{- define "pilothouse.redisCommands" -}}
-@all +eval +evalsha +xadd +xrange +xrevrange +expire +hmget +hset
{{- end }}
{{- define "pilothouse.judgeName" -}}
{{ .Release.Name }}-judge
{{- end }}
{{- define "pilothouse.judgeSelector" -}}
app.kubernetes.io/name: pilothouse
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: judge
{{- end }}
{{- /* Where the operator finds the judge; empty where there is none. */ -}}
{{- define "pilothouse.judgeUrl" -}}
{{- if .Values.judge.models }}http://{{ include "pilothouse.judgeName" . }}.{{ .Release.Namespace }}:8080{{ end }}
{{- end }}
{{- /* The Secret with the token by which the judge knows the operator. */ -}}
{{- define "pilothouse.judgeToken" -}}
{{ .Values.judge.tokenSecret | default (printf "%s-token" (include "pilothouse.judgeName" .)) }}
{{- end }}
