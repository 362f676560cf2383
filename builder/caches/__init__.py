"""Caches of wheels by sha256: places that are asked before the index. See `docs/caches.md` and `builder.caches.protocol`."""
