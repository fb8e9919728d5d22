from __future__ import annotations

import os
import ssl

import pytest

from modeld.trust import nobody_trusted


@pytest.mark.parametrize("before", [None, "/etc/ssl/certs/ca-certificates.crt"])
def test_a_context_made_inside_trusts_nobody_and_the_environment_comes_back(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """A default context made inside has no authorities; afterwards the variables are as they were."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        if before is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, before)
    with nobody_trusted():
        assert ssl.create_default_context().get_ca_certs() == []
    with pytest.raises(ZeroDivisionError), nobody_trusted():
        1 / 0  # noqa: B018  # the way out by an exception puts them back too
    assert (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) == (before, before)
