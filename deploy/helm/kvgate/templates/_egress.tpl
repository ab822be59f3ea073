{{- /* What a gateway reaches, as rules of a NetworkPolicy. */ -}}
{{- define "kvgate.egress" -}}
- ports: # DNS, wherever the cluster has it
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- if include "kvgate.asksApi" . }}
- ports: # the API server, which is no pod
    - {port: 443}
    - {port: 6443}
- to: # engines: their API, KV events, replay and agents
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: {{ include "kvgate.workersNamespace" . }}}
      {{- if and .Values.workers.selector (not .Values.workers.service) (not .Values.workers.inferencePool) }}
      podSelector:
        matchLabels: {{- toYaml .Values.workers.selector | nindent 10 }}
      {{- end }}
{{- end }}
{{- if .Values.valkey.enabled }}
- ports:
    - {port: 6379}
  to:
    - podSelector:
        matchLabels: {{- include "kvgate.valkeyLabels" . | nindent 10 }}
{{- else if .Values.redis.url }}
- ports: # Redis
    {{- $hosts := regexReplaceAll "^[^:]*://([^/]*@)?" .Values.redis.url "" | splitList "/" | first }}
    {{- $ports := regexFindAll ":[0-9]+" $hosts -1 | default (list ":6379") }}
    {{- if contains "+sentinel://" .Values.redis.url }}{{ $ports = append $ports ":6379" }}{{ end }}
    {{- range $ports | uniq }}
    - {port: {{ trimPrefix ":" . }}}
    {{- end }}
{{- end }}
{{- if and .Values.workers.urls (not .Values.networkPolicy.egress) }}
{{- fail "networkPolicy.restrictEgress: say in networkPolicy.egress where workers.urls are, as in [{to: [{ipBlock: {cidr: 10.0.0.0/24}}]}]" }}
{{- end }}
{{- with .Values.networkPolicy.egress }}
{{ toYaml . }}
{{- end }}
{{- end -}}
