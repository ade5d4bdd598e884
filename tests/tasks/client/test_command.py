"""The options of ``python -m tasks.client``."""

from __future__ import annotations

import ssl
from pathlib import Path

import certifi
import pytest

from tasks.client.__main__ import token_in, trust

END = "-----END CERTIFICATE-----\n"


def test_a_file_of_certificates_is_trusted_besides_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = Path(certifi.where()).read_text().split(END)
    (tmp_path / "system.pem").write_text(first + END)
    (tmp_path / "own.pem").write_text(second + END)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))

    context = trust(str(tmp_path / "own.pem"))

    assert isinstance(context, ssl.SSLContext)
    assert len(context.get_ca_certs()) == 2
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_a_token_file_is_read_again_and_must_contain_a_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("leasing_first\n")
    assert token_in(path) == "leasing_first"
    path.write_text("my secret\n")

    with pytest.raises(ValueError, match="token contains no token") as refusal:
        token_in(path)

    assert "secret" not in str(refusal.value)
