"""What managed platforms, Amazon SageMaker and Google Vertex AI, expect of a container: endpoints on ports of their
own, in front of the same handlers as the HTTP service."""
