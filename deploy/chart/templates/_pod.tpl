{{/* The template of the pods. */}}
{{- define "trioton.pod" -}}
metadata:
  labels:
    {{- include "trioton.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: trioton
    {{- if and .Values.secret.id (not .Values.existingSecret) }}
    checksum/secret: {{ include (print $.Template.BasePath "/secret.yaml") . | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "trioton.serviceAccountName" . }}
  automountServiceAccountToken: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ include "trioton.gracePeriod" . }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: trioton
      image: {{ include "trioton.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- if .Values.image.serverCommand }}
      command: [{{ .Values.image.serverCommand | quote }}]
      {{- else }}
      command: [trioton, serve]
      {{- end }}
      args:
        {{- include "trioton.args" . | trim | nindent 8 }}
      ports:
        - {name: http, containerPort: 8000}
        - {name: grpc, containerPort: 8001}
        - {name: metrics, containerPort: 8002}
      env:
        - {name: HOME, value: /tmp}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- $secret := .Values.existingSecret | default (ternary (include "trioton.fullname" .) "" (ne .Values.secret.id "")) }}
      {{- if or $secret .Values.extraEnvFrom }}
      envFrom:
        {{- if $secret }}
        - secretRef: {name: {{ $secret }}}
        {{- end }}
        {{- with .Values.extraEnvFrom }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- range $name, $probe := .Values.probes }}
      {{- if $probe.enabled }}
      {{ $name }}Probe:
        {{- include "trioton.probe" $probe | nindent 8 }}
      {{- end }}
      {{- end }}
      resources:
        {{- $gpus := int (include "trioton.gpus" .) }}
        {{- $limits := dict }}
        {{- if $gpus }}
        {{- $limits = dict "nvidia.com/gpu" $gpus }}
        {{- end }}
        {{- toYaml (mergeOverwrite (deepCopy .Values.resources) (dict "limits" (merge $limits (.Values.resources.limits | default dict)))) | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        - {name: tmp, mountPath: /tmp}
        {{- if include "trioton.hasFolder" . }}
        - {name: models, mountPath: {{ include "trioton.repository" . }}, readOnly: true}
        {{- else }}
        - {name: cache, mountPath: /cache}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory.sizeLimit }}}
    - name: tmp
      emptyDir: {sizeLimit: {{ .Values.temporary.sizeLimit }}}
    {{- if include "trioton.hasFolder" . }}
    - name: models
      {{- include "trioton.modelsVolume" . | nindent 6 }}
    {{- else if not (include "trioton.claimsByReplica" .) }}
    - name: cache
      {{- if or .Values.cache.existingClaim .Values.cache.persistent }}
      persistentVolumeClaim: {claimName: {{ .Values.cache.existingClaim | default (printf "%s-cache" (include "trioton.fullname" .)) }}}
      {{- else }}
      emptyDir: {sizeLimit: {{ .Values.cache.size }}}
      {{- end }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "trioton.selectorLabels" . | nindent 10 }}
    {{- end }}
{{- end }}

{{- define "trioton.modelsVolume" -}}
{{- $server := .Values.image.modelRepositoryServer | default .Values.modelRepository.nfs.server }}
{{- if .Values.modelRepository.pvc -}}
persistentVolumeClaim: {claimName: {{ .Values.modelRepository.pvc }}, readOnly: true}
{{- else if $server -}}
nfs: {server: {{ $server }}, path: {{ .Values.modelRepository.nfs.share | default (include "trioton.repository" .) }}, readOnly: true}
{{- else if .Values.modelRepository.hostPath -}}
hostPath: {path: {{ .Values.modelRepository.hostPath }}, type: Directory}
{{- else -}}
emptyDir: {}
{{- end }}
{{- end }}

{{/* "true" where each replica of a StatefulSet has a cache of its own that stays. */}}
{{- define "trioton.claimsByReplica" -}}
{{- if and (eq .Values.kind "StatefulSet") .Values.cache.persistent (not .Values.cache.existingClaim) }}true{{ end }}
{{- end }}

{{- define "trioton.cacheClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.cache.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.cache.size }}
{{- end }}
