"""`python gcs_like.py PORT`: the S3 of moto for clients of Google Cloud Storage, whose XML API has the same requests but other signatures."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def signed_otherwise(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """An application that sees a signature of Amazon's kind in the place of Google's; moto checks neither."""

    def changed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ["HTTP_AUTHORIZATION"] = _SIGNED
        return application(environ, start_response)

    return changed


if __name__ == "__main__":
    served = signed_otherwise(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), served, threaded=True)
