"""A review as JSON; `docs/schemas/review.schema.json` says what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envspec.diff.changes import Change
    from envspec.diff.review import Review
    from envspec.lock import Lock


def review_record(review: Review) -> dict[str, Any]:
    """The record that `--format json` prints, without `version`.

    Args:
        review: What is to be shown.
    """
    cost = review.cost
    return {
        "lock": review.lock_name,
        "old": _side(review.old_label, review.old),
        "new": _side(review.new_label, review.new),
        "same_env": review.same_env,
        "same_site": review.same_site,
        "counts": dict(review.counts()),
        "cost": {
            "download_bytes": cost.download_bytes,
            "download_wheels": cost.download_wheels,
            "host_bytes": cost.host_bytes,
            "host_wheels": cost.host_wheels,
            "reused_bytes": cost.reused_bytes,
            "reused_wheels": cost.reused_wheels,
            "old_bytes": cost.old_bytes,
            "new_bytes": cost.new_bytes,
        },
        "overrides": list(review.new.overrides),
        "hosts": [
            {"host": host.name, "old": host.old, "new": host.new, "reasons": list(host.reasons)}
            for host in review.hosts
        ]
        if review.hosts_known
        else None,
        "changes": [_change(change) for change in review.changes],
    }


def _side(label: str, lock: Lock | None) -> dict[str, Any]:
    return {
        "label": label,
        "env": lock.env if lock else None,
        "site": lock.site if lock else None,
        "packages": len(lock.packages) if lock else None,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "level": change.level,
        "section": change.section.name.lower(),
        "package": change.package or None,
        "subject": change.subject or None,
        "old": change.old or None,
        "new": change.new or None,
        "text": change.text,
        "consequences": list(change.consequences),
        "requesters": list(change.requesters),
        "heads": list(change.heads),
        "because": list(change.because),
        "excerpts": [
            {"title": excerpt.title, "language": excerpt.language or None, "text": excerpt.text}
            for excerpt in change.excerpts
        ],
    }
