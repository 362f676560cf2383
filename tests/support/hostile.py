"""Texts that try to be more than text: for a terminal, for Markdown, for HTML."""

from __future__ import annotations

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07 gone",
    "a\u202eb\u2066c\ufeff",
    "@everyone ![x](http://127.0.0.1/x.png) [y](javascript:alert(1)) #1 GH-2 !3 ~4 :tada:",
    "</code></pre></details><script>alert(1)</script><img src=x onerror=alert(1)>",
    "`` ` ``` ```` @someone",
    "```\n# heading\n- [ ] task\n",
    "a | b | c \\| d || e",
    "&lt;b&gt; &#64;someone $x^2$ ~~no~~ __yes__ **yes** <!-- -->",
    "www.example.invalid and ftp://example.invalid/",
    "\r\n\u2028\u2029\x00\x7f\x85",
    '" onmouseover="alert(1)',
    "' \" ` < > &",
)
