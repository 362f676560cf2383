"""Values -> text, Markdown, a page, JSON. Nothing here prints; whatever came out of a lock, a wheel or a patch is made safe to show."""
