{{- /* The gateway's pod, for a Deployment or a DaemonSet. */ -}}
{{- define "kvgate.pod" -}}
metadata:
  labels:
    {{- include "kvgate.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ sha256sum .Values.config }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "kvgate.serviceAccount" . }}
  automountServiceAccountToken: {{ ternary true false (eq (include "kvgate.asksApi" .) "yes") }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add .Values.drainTimeoutSeconds .Values.preStopSeconds 10 }}
  securityContext: {{- include "kvgate.podSecurity" .Values.runAsUser | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  containers:
    - name: kvgate
      image: {{ include "kvgate.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        {{- range include "kvgate.workers" . | fromYamlArray }}
        - --worker
        - {{ . | quote }}
        {{- end }}
        - --processes
        - {{ .Values.processes | quote }}
        - --drain-timeout-s
        - {{ .Values.drainTimeoutSeconds | quote }}
        {{- if .Values.epp.enabled }}
        - --epp-port
        - {{ .Values.epp.port | quote }}
        - --epp-health-port
        - {{ .Values.epp.healthPort | quote }}
        {{- end }}
        {{- if include "kvgate.hasScaler" . }}
        - --scaling-port
        - {{ .Values.keda.port | quote }}
        {{- end }}
        {{- if .Values.config }}
        - --config
        - /etc/kvgate/kvgate.toml
        {{- end }}
        {{- range .Values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      env:
        - {name: KVGATE_HOST, value: "0.0.0.0"}
        - {name: KVGATE_ADMIN_HOST, value: "0.0.0.0"}
        - {name: KVGATE_ADMIN_WITHOUT_KEYS, value: probes}
        - {name: KVGATE_LOG_FORMAT, value: json}
        - {name: HF_HOME, value: /var/cache/kvgate}
        {{- if .Values.keys.secret }}
        - {name: KVGATE_KEY_FILE, value: /etc/kvgate-keys/keys}
        {{- end }}
        {{- if .Values.keys.adminSecret }}
        - {name: KVGATE_ADMIN_KEY_FILE, value: /etc/kvgate-admin-keys/keys}
        {{- end }}
        {{- if .Values.workers.keySecret }}
        - {name: KVGATE_WORKER_KEY_FILE, value: /etc/kvgate-worker-key/key}
        {{- end }}
        {{- if .Values.tls.secret }}
        - {name: KVGATE_TLS_CERT_FILE, value: /etc/kvgate-tls/tls.crt}
        - {name: KVGATE_TLS_KEY_FILE, value: /etc/kvgate-tls/tls.key}
        {{- end }}
        {{- with .Values.agents.port }}
        - {name: KVGATE_AGENT_PORT, value: {{ . | quote }}}
        {{- end }}
        {{- if .Values.agents.tokenSecret }}
        - {name: KVGATE_AGENT_TOKEN_FILE, value: /etc/kvgate-agent-token/token}
        {{- end }}
        {{- if .Values.agents.caSecret }}
        - {name: KVGATE_AGENT_CA_FILE, value: /etc/kvgate-agent-ca/ca.crt}
        {{- end }}
        {{- with include "kvgate.redis" . }}
        - {name: KVGATE_REDIS, value: {{ . | quote }}}
        {{- end }}
        {{- if include "kvgate.redisSecret" . }}
        - {name: KVGATE_REDIS_PASSWORD_FILE, value: /etc/kvgate-redis/password}
        {{- end }}
        {{- if .Values.redis.caSecret }}
        - {name: KVGATE_REDIS_CA_FILE, value: /etc/kvgate-redis-ca/ca.crt}
        {{- end }}
        {{- with .Values.huggingFace.tokenSecret }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef: {name: {{ . }}, key: token}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 8000}
        - {name: admin, containerPort: 9400}
        {{- if .Values.epp.enabled }}
        - {name: epp, containerPort: {{ .Values.epp.port }}}
        - {name: epp-health, containerPort: {{ .Values.epp.healthPort }}}
        {{- end }}
        {{- if include "kvgate.hasScaler" . }}
        - {name: scaler, containerPort: {{ .Values.keda.port }}}
        {{- end }}
      startupProbe:
        httpGet: {path: /health, port: admin}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /health, port: admin}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      {{- /* /ready needs a worker, and requests that start a fleet of zero must come through */}}
      readinessProbe:
        httpGet: {path: {{ ternary "/health" "/ready" .Values.keda.enabled }}, port: admin}
        periodSeconds: 5
        timeoutSeconds: 3
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ .Values.preStopSeconds | quote }}]
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext: {{- include "kvgate.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: cache, mountPath: /var/cache/kvgate}
        {{- if .Values.config }}
        - {name: config, mountPath: /etc/kvgate, readOnly: true}
        {{- end }}
        {{- range include "kvgate.secrets" . | fromYamlArray }}
        - {name: {{ .name }}, mountPath: {{ .path }}, readOnly: true}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: cache
      emptyDir: {}
    {{- if .Values.config }}
    - name: config
      configMap: {name: {{ include "kvgate.fullname" . }}}
    {{- end }}
    {{- range include "kvgate.secrets" . | fromYamlArray }}
    - name: {{ .name }}
      secret: {secretName: {{ .secret }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if and .Values.topologySpread (not (include "kvgate.isDaemonSet" .)) }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "kvgate.selectorLabels" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
