"""TPU machines of Google Cloud, made, used and deleted by `gcloud`."""
