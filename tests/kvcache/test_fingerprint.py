"""Fingerprints change with anything that changes the meaning of stored bytes."""

from kvcache.fingerprint import fingerprint, settings_root, settings_text

SETTINGS = {"type_k": "f16", "flash_attn": True, "grid": 64, "rope": None}


def test_the_order_of_settings_means_nothing() -> None:
    assert fingerprint(b"w", SETTINGS) == fingerprint(b"w", dict(reversed(SETTINGS.items())))
    assert settings_root(SETTINGS) == settings_root(dict(reversed(SETTINGS.items())))


def test_every_setting_and_the_weights_count() -> None:
    changed = [SETTINGS | {"type_k": "q8_0"}, SETTINGS | {"flash_attn": False}, SETTINGS | {"grid": 32}, SETTINGS | {"rope": 1.0}]
    prints = {fingerprint(b"w", s) for s in [SETTINGS, *changed]} | {fingerprint(b"other", SETTINGS)}
    assert len(prints) == 6
    assert len({settings_root(s) for s in [SETTINGS, *changed]}) == 5


def test_settings_are_shown_as_one_line_of_json() -> None:
    assert settings_text(SETTINGS) == '{"flash_attn":true,"grid":64,"rope":null,"type_k":"f16"}'
