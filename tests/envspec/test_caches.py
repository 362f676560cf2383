"""What a spec and a configuration may say of caches."""

from __future__ import annotations

import pytest

from envspec.caches import in_order, parse_configuration
from envspec.errors import EnvspecError
from envspec.spec import CacheSpec, spec_digest
from envspec.spec_toml import parse_spec

SPEC = """envspec = 1
name = "demo"
[python]
version = "3.12"
[target]
platform = "linux-x86_64"
glibc = "2.35"
[packages]
torch = "*"
[hosts.h0]
"""


def cache(lines: str) -> CacheSpec:
    (found,) = parse_spec(f'{SPEC}[[caches]]\nname = "lab"\n{lines}', input_name="demo.toml").caches
    return found


def problems(lines: str) -> list[str]:
    with pytest.raises(EnvspecError) as caught:
        cache(lines)
    assert "s3cr3t" not in str(caught.value)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1:8080", "http"),
        ("https://cache.example/a/b", "http"),
        ("https://[::1]:8080/a", "http"),
        ("oci://registry.example:5000/envs/dd-tree_x", "oci"),
        ("s3://wheels", "bucket"),
        ("s3://my.wheels/a/b", "bucket"),
        ("gs://wheels/a", "bucket"),
        ("az://container/a", "bucket"),
        ("ssh://gpu-1", "ssh"),
        ("ssh://gpu-1/data/envspec", "ssh"),
    ],
)
def test_every_kind_of_url_is_taken(url: str, kind: str) -> None:
    assert (cache(f'url = "{url}"').url, cache(f'url = "{url}"').kind) == (url, kind)


def test_a_slash_at_the_end_does_not_count() -> None:
    assert cache('url = "https://cache.example/wheels/"').url == "https://cache.example/wheels"


@pytest.mark.parametrize(
    "url",
    [
        "https://jane:s3cr3t@cache.example/",
        "https://jane@cache.example/",
        "https://cache.example/?token=s3cr3t",
        "https://cache.example/#s3cr3t",
        "ssh://jane@gpu-1",
        "s3://AKIA:s3cr3t@wheels/x",
    ],
)
def test_a_url_that_may_hold_a_credential_is_refused_and_not_repeated(url: str) -> None:
    assert problems(f'url = "{url}"') == ["carries a user, or a query that may hold a credential"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://cache.example/",
        "file:///srv/wheels",
        "https://",
        "https:///x",
        "cache.example",
        "oci://registry.example",
        "oci://registry.example/Upper",
        "oci://registry.example/a/../b",
        "https://cache.example/a/../b",
        "https://cache.example/a b",
        "s3:///x",
        "ssh://-oProxyCommand=x",
        "ssh://gpu-1:22",
        "https://cache.example/\\u0000",
    ],
)
def test_what_is_no_place_of_a_cache_is_refused(url: str) -> None:
    (message,) = problems(f'url = "{url}"')
    assert message.startswith("expected a URL with `http`")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "is missing; expected a URL with `http`, `https`, `oci`, `s3`, `gs`, `az` or `ssh`, or `host`"),
        ('host = "h1"', "the spec declares no host `h1`"),
        ('host = "h0"\nurl = "https://a.example"', "a cache is a URL or a host, and this one has both"),
        ('url = "https://a.example"\nregion = "eu-central-1"', "is for a bucket, which this cache is not"),
        ('url = "https://a.example"\nplain-http = true', "is for an OCI registry, which this cache is not"),
        ('url = "s3://a"\nendpoint = "s3://b"', "expected a URL with `http` or `https`"),
        ('url = "s3://a"\nto-hosts = "no"', "expected `true` or `false`, got a string"),
        ('url = "s3://a"\npassword = "s3cr3t"', "unknown key"),
        ('url = "s3://a"\n[[caches]]\nname = "lab"\nurl = "s3://b"', "`lab` is the name of another cache already"),
    ],
)
def test_a_wrong_cache_is_reported(lines: str, message: str) -> None:
    assert problems(lines) == [message]


def test_caches_do_not_move_the_digest_of_a_spec() -> None:
    bare = parse_spec(SPEC, input_name="demo.toml")
    full = parse_spec(f'{SPEC}[[caches]]\nname = "a"\nurl = "s3://a"\nto-hosts = false', input_name="demo.toml")
    assert full.caches
    assert spec_digest(bare) == spec_digest(full)


def test_a_configuration_has_caches_and_nothing_else() -> None:
    (found,) = parse_configuration('[[caches]]\nname = "mine"\nurl = "s3://a"\nregion = "eu-central-1"', input_name="c")
    assert found == CacheSpec(name="mine", url="s3://a", region="eu-central-1")
    assert parse_configuration("", input_name="c") == ()
    with pytest.raises(EnvspecError, match="unknown key"):
        parse_configuration("[hosts.a]", input_name="c")
    with pytest.raises(EnvspecError, match="not valid TOML"):
        parse_configuration("caches = [", input_name="c")


def test_ones_own_caches_come_first_and_replace_by_name() -> None:
    a, b, mine = (CacheSpec(name=name, url=f"s3://{url}") for name, url in (("a", "x"), ("b", "x"), ("b", "mine")))
    assert in_order((mine,), (a, b)) == (mine, a)
    assert in_order((), (a, b)) == (a, b)
