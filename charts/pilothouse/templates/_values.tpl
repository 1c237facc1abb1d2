{{- /*
Every value that the templates read, but for those that may be absent. `helm upgrade --reuse-values` hands them the
values of the earlier chart, in which what is new is missing. A test compares this with values.yaml.
*/ -}}
{{- define "pilothouse.expectedValues" -}}
watchNamespaces: null
namespaced: null
crds:
  enabled: null
admission:
  enabled: null
  trustedUsers: null
operator:
  image: null
  imagePullPolicy: null
  replicas: null
  logLevel: null
  abortGraceSeconds: null
  sweepSeconds: null
  podMonitor:
    enabled: null
runner:
  image: null
  imagePullPolicy: null
  namespaces: null
  journalClaim: null
  telemetry:
    endpoint: null
    env: null
  networkPolicy:
    enabled: null
    egress: null
redis:
  enabled: null
  image: null
  imagePullPolicy: null
  url: null
  loginSecret: null
  apiLoginSecret: null
  existingSecret: null
  keepDays: null
  keepFinishedDays: null
  maxMemory: null
  persistence:
    enabled: null
    size: null
    storageClass: null
  networkPolicy:
    enabled: null
judge:
  models: null
  tokenSecret: null
  replicas: null
  podMonitor:
    enabled: null
  networkPolicy:
    enabled: null
    ingress: null
    egress: null
api:
  enabled: null
  replicas: null
  logLevel: null
  reviewRights: null
  tlsSecret: null
  mostStreams: null
  mostStreamsPerUser: null
  podMonitor:
    enabled: null
  networkPolicy:
    enabled: null
    from: null
fleet:
  redisUrl: null
  cluster: null
  keySecret: null
  loginSecret: null
ceilings:
  toolTimeoutSeconds: null
  pauseSeconds: null
  approvalExpiresSeconds: null
  tokenBudget: null
  costBudgetUSD: null
{{- end }}
{{- /* Lines with the names of what is missing; of a list: how the names begin, what is expected, what is there. */ -}}
{{- define "pilothouse.missingValues" -}}
{{- $begin := index . 0 }}
{{- $there := index . 2 }}
{{- range $key, $inner := index . 1 }}
{{- if not (hasKey $there $key) }}
{{ $begin }}{{ $key }}
{{- else if $inner }}
{{- include "pilothouse.missingValues" (list (printf "%s%s." $begin $key) $inner (index $there $key)) }}
{{- end }}
{{- end }}
{{- end }}
{{- /* Refuses values of an earlier chart, whose images would be run with the templates of this one. */ -}}
{{- define "pilothouse.checkValues" -}}
{{- $expected := fromYaml (include "pilothouse.expectedValues" .) }}
{{- $missing := include "pilothouse.missingValues" (list "" $expected .Values) | trim }}
{{- if $missing }}
{{- fail (printf "values are missing: %s. With `helm upgrade --reuse-values` those of the earlier chart are taken, its images too: use --reset-then-reuse-values, which keeps what you have set and takes all else from this chart (Helm 3.14 or newer; before: helm get values, then upgrade with -f)" (splitList "\n" $missing | join ", ")) }}
{{- end }}
{{- end }}
