"""Environments as files that others carry: OCI images, and bundles for machines that no network reaches."""
