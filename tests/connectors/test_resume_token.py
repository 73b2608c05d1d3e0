"""A token proves one interaction and one action, to one set of keys; everything else is refused with the same words (CASES 95, 97)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import resume_token
from connectors.resume_token import SECRET_BYTES_MIN, TOKEN_CHARS_MAX, TokenClaims, TokenSigner
from schemas.errors import TokenRejected, UsageError

SECRET = b"first secret, 32 bytes long ....."
OLD_SECRET = b"second secret, 32 bytes long ...."
SIGNER = TokenSigner(active="k1", keys={"k1": SECRET})
INTERACTION = "3f0e6a4e-9f6b-5c1a-8a52-0d3c4cf6b7aa.1.512"
CLAIMS: dict[str, Any] = {
    "tenant_id": "default",
    "interaction_id": INTERACTION,
    "correlation_id": INTERACTION,
    "step_id": "await-payment-provider",
    "deadline_ms": 1_764_500_000_000,
    "action": "complete",
}
TOKEN = SIGNER.sign(**CLAIMS)

OTHERS: dict[str, list[Any]] = {
    "tenant_id": ["other", "", "Default", "default "],
    "interaction_id": [
        INTERACTION[:-1],  # item 51
        INTERACTION + "0",
        INTERACTION.replace(".1.512", ".2.512"),  # another step
        INTERACTION.replace(".512", ".u"),
        "4" + INTERACTION[1:],  # another execution
        "",
    ],
    "correlation_id": ["payment-7", "", INTERACTION + "0"],
    "step_id": ["approve", "", "Await-payment-provider"],
    "deadline_ms": [1_764_499_999_999, 1_764_500_000_001, 0, -1],
    "action": ["cancel", "", "Complete"],
}


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def refused(token: str | None, signer: TokenSigner = SIGNER, **claims: Any) -> str:
    """The token is refused with its row, and says so in one way."""
    with pytest.raises(TokenRejected) as caught:
        signer.verify(token, **{**CLAIMS, **claims})
    return str(caught.value)


def refused_by_signature(token: str | None, signer: TokenSigner = SIGNER, **wanted: Any) -> str:
    with pytest.raises(TokenRejected) as caught:
        signer.verify_signature(token, **wanted)
    return str(caught.value)


# --- form --------------------------------------------------------------------------------------------------------------------------


def test_the_form_is_claims_dot_hmac_both_base64url() -> None:
    claims = ["k1", "complete", "default", INTERACTION, None, "await-payment-provider", 1_764_500_000_000]
    signed = base64url(json.dumps(claims, separators=(",", ":")).encode())
    assert base64url(hmac.digest(SECRET, signed.encode(), "sha256")) == TOKEN.split(".")[1]
    assert f"{signed}.{TOKEN.split('.')[1]}" == TOKEN


@pytest.mark.parametrize("length", [SECRET_BYTES_MIN, 63, 64, 65, 200])
def test_secrets_of_every_length_sign_as_hmac_does(length: int) -> None:
    secret = bytes(range(256))[:length]
    signed, mac = TokenSigner(active="k", keys={"k": secret}).sign(**CLAIMS).split(".")
    assert mac == base64url(hmac.new(secret, signed.encode(), hashlib.sha256).digest())


def test_the_same_claims_give_the_same_token() -> None:
    assert (
        SIGNER.sign(**CLAIMS) == TokenSigner(active="k1", keys={"k1": SECRET, "k0": OLD_SECRET}).sign(**CLAIMS) == TOKEN
    )


def test_a_token_is_safe_in_a_url_and_a_header() -> None:
    token = SIGNER.sign(**{**CLAIMS, "tenant_id": "Zürich ÿ??>>", "step_id": "支払い"})
    assert token.isascii()
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


# --- good ones ---------------------------------------------------------------------------------------------------------------------


def test_a_token_is_good_for_its_row() -> None:
    SIGNER.verify(TOKEN, **CLAIMS)


def test_a_good_signature_gives_the_claims() -> None:
    claims = SIGNER.verify_signature(TOKEN, interaction_id=INTERACTION)
    assert claims == TokenClaims(
        "k1", "complete", "default", INTERACTION, None, "await-payment-provider", 1_764_500_000_000
    )
    assert claims.correlation_id == INTERACTION
    assert SIGNER.verify_signature(TOKEN) == claims


def test_a_correlation_of_its_own_is_kept() -> None:
    token = SIGNER.sign(**{**CLAIMS, "correlation_id": "payment-7"})
    SIGNER.verify(token, **{**CLAIMS, "correlation_id": "payment-7"})
    assert SIGNER.verify_signature(token).correlation_id == "payment-7"
    refused(token)


@given(
    st.builds(dict, tenant_id=st.text(), interaction_id=st.text(), correlation_id=st.text(), step_id=st.text()),
    st.integers(0, 2**53),
)
@settings(max_examples=50, deadline=None)
def test_any_claims_come_back(texts: dict[str, str], deadline_ms: int) -> None:
    token = SIGNER.sign(**texts, deadline_ms=deadline_ms)
    SIGNER.verify(token, **texts, deadline_ms=deadline_ms)
    claims = SIGNER.verify_signature(token, interaction_id=texts["interaction_id"])
    assert {name: getattr(claims, name) for name in texts} == texts


def test_there_is_no_clock() -> None:
    """A token is judged with its interaction: one that is long past its deadline is still genuine (BEHAVIOUR edge case 62)."""
    long_ago = {**CLAIMS, "deadline_ms": 1}
    SIGNER.verify(SIGNER.sign(**long_ago), **long_ago)


# --- bad ones ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("claim", "value"), [(claim, value) for claim, values in OTHERS.items() for value in values])
def test_each_claim_must_be_the_rows(claim: str, value: Any) -> None:
    refused(TOKEN, **{claim: value})
    refused(SIGNER.sign(**{**CLAIMS, claim: value}))


def test_claims_do_not_run_into_each_other() -> None:
    token = SIGNER.sign(**{**CLAIMS, "tenant_id": 'a","b', "step_id": "c"})
    refused(token, tenant_id="a", step_id='b","c')


@pytest.mark.parametrize(
    "wanted", [{"interaction_id": INTERACTION + "0"}, {"interaction_id": ""}, {"action": "cancel"}]
)
def test_ingress_refuses_another_interaction_or_action(wanted: dict[str, Any]) -> None:
    refused_by_signature(TOKEN, **wanted)


@pytest.mark.parametrize("place", range(len(TOKEN)))
def test_every_character_counts(place: int) -> None:
    for other in "A", "B", "Q", "_", "-", ".", "=", " ", "+", "/", "é", "\0":
        if TOKEN[place] != other:
            forged = TOKEN[:place] + other + TOKEN[place + 1 :]
            refused(forged)
            refused_by_signature(forged)
    refused(TOKEN[:place] + TOKEN[place + 1 :])
    refused_by_signature(TOKEN[:place] + TOKEN[place + 1 :])


SIGNED, MAC = TOKEN.split(".")


@pytest.mark.parametrize(
    "malformed",
    [
        ".",
        "..",
        "a.b",
        SIGNED,
        f"{SIGNED}.",
        f".{MAC}",
        f"{MAC}.{SIGNED}",
        f"{TOKEN}.",
        f".{TOKEN}",
        f"{TOKEN}.{MAC}",
        f"{SIGNED}..{MAC}",
        f"{SIGNED}=.{MAC}",
        f"{TOKEN}=",
        f" {TOKEN}",
        f"{TOKEN}\n",
        TOKEN.lower(),
        "ｔｏｋｅｎ",
        "\ud800",
        "x" * (TOKEN_CHARS_MAX + 1),
        f"{'x' * 100_000}.{MAC}",
    ],
    ids=range(20),
)
def test_malformed_tokens(malformed: str) -> None:
    assert refused(malformed) == refused_by_signature(malformed) == refused(TOKEN, step_id="other")


@pytest.mark.parametrize("missing", [None, ""])
def test_a_missing_token_is_refused(missing: str | None) -> None:
    assert "no resume token" in refused(missing)
    assert "no resume token" in refused_by_signature(missing)


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_refused(text: str) -> None:
    refused(text)
    refused_by_signature(text)


@pytest.mark.parametrize(
    "claims",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b"[1]",
        b'["k1","complete","t"]',
        b"\xff",
        b'["k1","complete","t","i",null,"s",1,2]',
        b"not json",
    ],
)
def test_other_things_signed_with_the_key_are_no_tokens(claims: bytes) -> None:
    signed = base64url(claims)
    refused_by_signature(f"{signed}.{base64url(hmac.digest(SECRET, signed.encode(), 'sha256'))}")


def test_a_token_that_names_another_key_than_the_one_that_signed_it_is_refused() -> None:
    signer = TokenSigner(active="k1", keys={"k1": SECRET, "k0": OLD_SECRET})
    forged = TokenSigner(active="k0", keys={"k0": SECRET}).sign(**CLAIMS)
    refused(forged, signer)
    refused_by_signature(forged, signer)


def test_a_refusal_says_nothing_of_the_row_the_keys_or_the_token() -> None:
    message = refused(TOKEN, tenant_id="somebody-else")
    assert message == "resume token rejected"


# --- what is kept ------------------------------------------------------------------------------------------------------------------


def test_a_token_is_judged_the_same_whether_it_is_kept_or_not() -> None:
    signer = TokenSigner(active="k1", keys={"k1": SECRET, "k0": OLD_SECRET})
    token = signer.sign(**CLAIMS)
    refused(token[:-1] + ("A" if token[-1] != "A" else "B"), signer)  # also forgets the kept one
    for _ in range(2):
        signer.verify(token, **CLAIMS)
    signer.sign(**CLAIMS)
    refused(token, signer, deadline_ms=CLAIMS["deadline_ms"] + 1)
    for _ in range(2):
        signer.verify(token, **CLAIMS)


def test_tokens_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_token, "ISSUED_MAX", 10)
    signer = TokenSigner(active="k1", keys={"k1": SECRET})
    rows = [{**CLAIMS, "deadline_ms": at_ms} for at_ms in range(25)]
    tokens = [signer.sign(**row) for row in rows]
    assert len(signer._issued) == 5
    for token, row in zip(tokens, rows, strict=True):
        signer.verify(token, **row)
    assert not signer._issued


# --- keys --------------------------------------------------------------------------------------------------------------------------


def test_old_keys_verify_until_they_are_removed() -> None:
    before = TokenSigner(active="k0", keys={"k0": OLD_SECRET})
    rotated = TokenSigner(active="k1", keys={"k0": OLD_SECRET, "k1": SECRET})
    old = before.sign(**CLAIMS)
    rotated.verify(old, **CLAIMS)
    assert rotated.verify_signature(old).key_id == "k0"
    assert rotated.verify_signature(rotated.sign(**CLAIMS)).key_id == "k1"
    refused(old)
    refused_by_signature(old)
    refused(rotated.sign(**CLAIMS), before)


def test_another_secret_under_the_same_key_id_is_another_key() -> None:
    refused(TokenSigner(active="k1", keys={"k1": OLD_SECRET}).sign(**CLAIMS))


def test_the_key_id_is_signed() -> None:
    """The same secret under two names makes two different tokens."""
    twin = TokenSigner(active="k2", keys={"k2": SECRET, "k1": SECRET})
    assert twin.sign(**CLAIMS) != TOKEN
    twin.verify(TOKEN, **CLAIMS)
    assert twin.verify_signature(twin.sign(**CLAIMS)).key_id == "k2"


@pytest.mark.parametrize(
    ("active", "keys", "message"),
    [
        ("k2", {"k1": SECRET}, "tokens.active is 'k2'"),
        ("k1", {}, "tokens.active is 'k1'"),
        ("k1", {"k1": b"fifteen bytes.."}, "at least 16"),
        ("k1", {"k1": SECRET, "old": b"short"}, r"tokens\.keys\.old has 5 bytes"),
        ("", {"": SECRET}, "printable name"),
        ("k\n", {"k\n": SECRET}, "printable name"),
    ],
)
def test_keys_that_will_not_do(active: str, keys: dict[str, bytes], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        TokenSigner(active=active, keys=keys)
    assert "secret," not in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_signer_never_shows_a_secret() -> None:
    shown = [repr(SIGNER), str(SIGNER), *(repr(getattr(SIGNER, name)) for name in TokenSigner.__slots__)]
    assert not [text for text in shown if "secret" in text]
