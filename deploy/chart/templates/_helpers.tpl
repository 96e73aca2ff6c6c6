{{- define "trioton.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "trioton.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "trioton.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "trioton.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "trioton.selectorLabels" -}}
app.kubernetes.io/name: {{ include "trioton.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trioton.labels" -}}
{{ include "trioton.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: inference-server
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of an object; its argument is a list of the root, the end of the name, and more annotations. */}}
{{- define "trioton.metadata" -}}
{{- $root := index . 0 -}}
name: {{ printf "%s%s" (include "trioton.fullname" $root) (index . 1) }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "trioton.labels" $root | nindent 2 }}
{{- with merge (dict) (index . 2 | default dict) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "trioton.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "trioton.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "trioton.image" -}}
{{- with .Values.image }}
{{- if .imageName }}
{{- .imageName }}
{{- else if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "trioton.repository" -}}
{{- .Values.image.modelRepositoryPath | default .Values.modelRepository.path }}
{{- end }}

{{/* "true" where the repository is a folder, not a bucket. */}}
{{- define "trioton.hasFolder" -}}
{{- if not (contains "://" (include "trioton.repository" .)) }}true{{ end }}
{{- end }}

{{- define "trioton.gpus" -}}
{{- max (int .Values.gpus) (int .Values.image.numGpus) }}
{{- end }}

{{- define "trioton.hasHpa" -}}
{{- if or .Values.autoscaling.enabled .Values.tags.autoscaling }}true{{ end }}
{{- end }}

{{- define "trioton.hasAutoscaler" -}}
{{- if and (include "trioton.hasHpa" .) .Values.keda.enabled }}
{{- fail "autoscaling.enabled and keda.enabled: two autoscalers would fight over the number of replicas; choose one" }}
{{- end }}
{{- if or (include "trioton.hasHpa" .) .Values.keda.enabled }}true{{ end }}
{{- end }}

{{- define "trioton.mostReplicas" -}}
{{- if .Values.keda.enabled }}{{ .Values.keda.maxReplicas }}
{{- else if include "trioton.hasHpa" . }}{{ .Values.autoscaling.maxReplicas }}
{{- else }}{{ .Values.replicaCount }}{{ end }}
{{- end }}

{{- define "trioton.gracePeriod" -}}
{{- $least := add (int .Values.drainSeconds) (int .Values.exitTimeoutSeconds) }}
{{- $given := .Values.terminationGracePeriodSeconds }}
{{- if kindIs "invalid" $given }}
{{- add $least 10 }}
{{- else if le (int $given) (int $least) }}
{{- fail (printf "terminationGracePeriodSeconds is %d: the kubelet would kill the server before drainSeconds + exitTimeoutSeconds = %d seconds are over; give more, or null" (int $given) (int $least)) }}
{{- else }}
{{- int $given }}
{{- end }}
{{- end }}

{{- define "trioton.args" -}}
{{- $own := concat .Values.serverArgs .Values.image.serverArgs }}
{{- $given := join " " $own }}
{{- if not (or (contains "--model-repository" $given) (contains "--model-store" $given)) }}
- --model-repository={{ include "trioton.repository" . }}
{{- end }}
{{- with .Values.modelRepository }}
- --model-control-mode={{ .controlMode }}
{{- if eq .controlMode "poll" }}
- --repository-poll-secs={{ .pollSeconds }}
{{- end }}
{{- if and .loadModels (ne .controlMode "explicit") }}
{{- fail (printf "modelRepository.loadModels is given, but controlMode is %s: it has to be explicit" .controlMode) }}
{{- end }}
{{- range .loadModels }}
- --load-model={{ . }}
{{- end }}
{{- end }}
- --http-port=8000
- --grpc-port=8001
- --metrics-port=8002
- --drain-secs={{ int .Values.drainSeconds }}
- --exit-timeout-secs={{ int .Values.exitTimeoutSeconds }}
{{- if not (include "trioton.hasFolder" .) }}
- --model-repository-cache-dir=/cache
{{- end }}
{{- range $own }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "trioton.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
periodSeconds: {{ .periodSeconds }}
timeoutSeconds: {{ .timeoutSeconds }}
failureThreshold: {{ .failureThreshold }}
{{- end }}
