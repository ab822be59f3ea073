"""Rewrite of a request's model, once the name that the client gave has been checked."""

from collections.abc import Mapping

from gateway.core.pool_objects import ModelRewrites
from gateway.core.request import InferenceRequest
from gateway.core.worker import ServedModel
from gateway.http.messages import HttpRequest
from gateway.requests.client_body import NAMELESS
from gateway.requests.model_name import check_plain, renamed_query
from gateway.requests.multipart import renamed_body


def rewrite(
    http: HttpRequest, request: InferenceRequest, rewrites: ModelRewrites, served: Mapping[str, ServedModel]
) -> None:
    """Put another model in the request, its body and its query, where a rewrite says so: the same one for a
    session, and for a body that is sent again. Raises InvalidRequest."""
    session, body = request.session, request.body
    model = rewrites.target(request.model, session.encode("utf-8", "replace") if session else body)
    if model == request.model:
        return
    if http.path in NAMELESS:
        check_plain(http.path, model, served)
    request.choose(model, renamed_body(body, model) if body else body)
    if http.has_query:
        http.target = renamed_query(http.target, model)
