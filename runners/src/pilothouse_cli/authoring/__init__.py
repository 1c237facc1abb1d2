"""What an author of workflows works with: manifests out of files, a first workflow, a model that plays a script."""
