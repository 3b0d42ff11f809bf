"""Encryption of what is stored, with a key that the operator gives: AES-256 in GCM."""

from __future__ import annotations

import os
from pathlib import Path

from weftline.contract.errors import InvalidRequest

KEY_BYTES = 32
NONCE_BYTES = 12
_MARK = b"\x01"  # JSON begins with a brace


class Cipher:
    """Seals records. A sealed record opens only as one of its own session."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise InvalidRequest(
                "a key file needs the package cryptography: pip install 'weftline[encryption]'",
                param="store_key_file",
            ) from error
        self._aead = AESGCM(key)

    @staticmethod
    def of(path: str) -> Cipher | None:
        """The cipher of a key file; None for "". Raises InvalidRequest."""
        if not path:
            return None
        try:
            key = bytes.fromhex(Path(path).read_text(encoding="ascii").strip())
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"cannot read a key from {path}: {error}", param="key") from error
        if len(key) != KEY_BYTES:
            raise InvalidRequest(
                f"{path} must hold {2 * KEY_BYTES} hex digits, for example those of "
                "`openssl rand -hex 32`",
                param="store_key_file",
            )
        return Cipher(key)

    def seal(self, session: int, body: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return _MARK + nonce + self._aead.encrypt(nonce, body, _bound(session))

    def open(self, session: int, sealed: bytes) -> bytes:
        """The record. Raises InvalidRequest if it was sealed with another key, or changed."""
        from cryptography.exceptions import InvalidTag

        if sealed[:1] != _MARK:
            return sealed  # written before there was a key
        nonce, data = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            return self._aead.decrypt(nonce, data, _bound(session))
        except InvalidTag as error:
            raise InvalidRequest(
                "the store is encrypted with another key, or damaged: give its own key file",
                param="store_key_file",
            ) from error


def _bound(session: int) -> bytes:
    return session.to_bytes(8, "big")
