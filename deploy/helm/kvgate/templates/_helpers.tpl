{{- define "kvgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "kvgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvgate.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kvgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvgate.testLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end -}}

{{- define "kvgate.labels" -}}
{{ include "kvgate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kvgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kvgate.workersNamespace" -}}
{{- default .Release.Namespace .Values.workers.namespace -}}
{{- end -}}

{{- /* The name of the InferencePool that has the workers; empty without one. */ -}}
{{- define "kvgate.pool" -}}
{{- if .Values.epp.inferencePool.create -}}
{{- include "kvgate.fullname" . -}}
{{- else -}}
{{- .Values.workers.inferencePool -}}
{{- end -}}
{{- end -}}

{{- /* The URLs of the workers, as a list in YAML. */ -}}
{{- define "kvgate.workers" -}}
{{- $at := printf "k8s://%s" (include "kvgate.workersNamespace" .) -}}
{{- $urls := .Values.workers.urls -}}
{{- if include "kvgate.pool" . -}}
{{- $urls = append $urls (printf "%s/inferencepool/%s%s" $at (include "kvgate.pool" .) (ternary "?scheme=https" "" .Values.workers.https)) -}}
{{- else if .Values.workers.selector -}}
{{- $pairs := list -}}
{{- range $key, $value := .Values.workers.selector -}}
{{- $pairs = append $pairs (printf "%s=%s" $key (toString $value)) -}}
{{- end -}}
{{- $urls = append $urls (printf "%s/pods?%s&port=%s%s" $at (join "&" $pairs) (toString .Values.workers.port) (ternary "&scheme=https" "" .Values.workers.https)) -}}
{{- end -}}
{{- if .Values.workers.service -}}
{{- $urls = append $urls (printf "%s/service/%s%s" $at .Values.workers.service (ternary "?scheme=https" "" .Values.workers.https)) -}}
{{- end -}}
{{- if not $urls -}}
{{- fail "kvgate needs workers, as in --set workers.selector.app=vllm, workers.service=vllm or workers.inferencePool=vllm" -}}
{{- end -}}
{{- toYaml $urls -}}
{{- end -}}

{{- define "kvgate.asksApi" -}}
{{- if or (include "kvgate.pool" .) .Values.workers.selector .Values.workers.service -}}yes{{- end -}}
{{- end -}}

{{- define "kvgate.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "kvgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Takes the user, which is left to the cluster where there is none. */ -}}
{{- define "kvgate.podSecurity" -}}
runAsNonRoot: true
{{- with . }}
runAsUser: {{ int . }}
runAsGroup: {{ int . }}
fsGroup: {{ int . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* The Secrets to mount, as a list in YAML; empty without any. */ -}}
{{- define "kvgate.secrets" -}}
{{- $every := list
  (dict "name" "keys" "secret" .Values.keys.secret "path" "/etc/kvgate-keys")
  (dict "name" "admin-keys" "secret" .Values.keys.adminSecret "path" "/etc/kvgate-admin-keys")
  (dict "name" "worker-key" "secret" .Values.workers.keySecret "path" "/etc/kvgate-worker-key")
  (dict "name" "tls" "secret" .Values.tls.secret "path" "/etc/kvgate-tls")
  (dict "name" "agent-token" "secret" .Values.agents.tokenSecret "path" "/etc/kvgate-agent-token")
  (dict "name" "agent-ca" "secret" .Values.agents.caSecret "path" "/etc/kvgate-agent-ca")
  (dict "name" "redis" "secret" (include "kvgate.redisSecret" .) "path" "/etc/kvgate-redis")
  (dict "name" "redis-ca" "secret" .Values.redis.caSecret "path" "/etc/kvgate-redis-ca") -}}
{{- $used := list -}}
{{- range $every -}}{{- if .secret -}}{{- $used = append $used . -}}{{- end -}}{{- end -}}
{{- toYaml $used -}}
{{- end -}}

{{- define "kvgate.isDaemonSet" -}}
{{- if eq .Values.kind "DaemonSet" -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling: a DaemonSet has a gateway on each node; leave autoscaling.enabled out" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{- /* Not empty where there may be more than one pod. */ -}}
{{- define "kvgate.isSeveral" -}}
{{- if or (include "kvgate.isDaemonSet" .) .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) -}}true{{- end -}}
{{- end -}}

{{- /* Not empty where the gateway serves KEDA's external scaler: one process sees all requests. */ -}}
{{- define "kvgate.hasScaler" -}}
{{- if and .Values.keda.enabled (not .Values.keda.prometheusServer) -}}
{{- if or (include "kvgate.isSeveral" .) (gt (int .Values.processes) 1) -}}
{{- fail "keda: several gateways or processes each see some of the requests; set keda.prometheusServer, which adds them up" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{- define "kvgate.redis" -}}
{{- if .Values.valkey.enabled -}}
{{- if or .Values.redis.url .Values.redis.caSecret -}}
{{- fail "valkey.enabled and redis.url (or redis.caSecret) are both set: take the bundled Valkey, for trials, or a Redis of your own" -}}
{{- end -}}
redis://{{ include "kvgate.fullname" . }}-valkey:6379
{{- else -}}
{{- .Values.redis.url -}}
{{- end -}}
{{- end -}}

{{- /* The Secret with Redis' password; empty without one. */ -}}
{{- define "kvgate.redisSecret" -}}
{{- if .Values.redis.passwordSecret -}}
{{- .Values.redis.passwordSecret -}}
{{- else if .Values.valkey.enabled -}}
{{- include "kvgate.fullname" . }}-valkey
{{- end -}}
{{- end -}}

{{- define "kvgate.valkeyLabels" -}}
app.kubernetes.io/name: {{ include "kvgate.name" . }}-valkey
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Takes the root, `enabled` of a value, and API versions: not empty where it is true, or auto and one is served. */ -}}
{{- define "kvgate.isWanted" -}}
{{- $root := index . 0 -}}
{{- if ne (toString (index . 1)) "auto" -}}
{{- if index . 1 -}}true{{- end -}}
{{- else -}}
{{- range slice . 2 -}}{{- if $root.Capabilities.APIVersions.Has . -}}true{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Takes the root, an API version, the version of Kubernetes that brought it, and the API version before. */ -}}
{{- define "kvgate.apiVersion" -}}
{{- $capabilities := (index . 0).Capabilities -}}
{{- $is_new := semverCompare (printf ">=%s-0" (index . 2)) $capabilities.KubeVersion.Version -}}
{{- if and $is_new ($capabilities.APIVersions.Has (index . 1)) -}}{{ index . 1 }}{{- else -}}{{ index . 3 }}{{- end -}}
{{- end -}}

{{- /* Models that a Prometheus trigger may scale to zero; KEDA itself names those of the external scaler. */ -}}
{{- define "kvgate.modelsAtZero" -}}
{{- $models := list -}}
{{- if and .Values.keda.enabled .Values.keda.prometheusServer -}}
{{- range .Values.keda.targets -}}{{- $models = append $models (printf "%s=%s" .model (.role | default "both")) -}}{{- end -}}
{{- end -}}
{{- $models | uniq | join "," -}}
{{- end -}}
