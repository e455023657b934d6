"""What wrappers put into names is taken off only where that is safe, and said."""

from __future__ import annotations

from rankwise.sites.checkpoints.prefixes import unwrapped


def test_wrappers_anywhere_and_module_only_when_every_name_has_it() -> None:
    renamed, notes = unwrapped(
        ["_orig_mod.a.w", "b._checkpoint_wrapped_module.w", "c._fsdp_wrapped_module._orig_mod.w"]
    )
    assert list(renamed.values()) == ["a.w", "b.w", "c.w"]
    assert len(notes) == 3
    assert unwrapped(["module.a", "b"]) == ({"module.a": "module.a", "b": "b"}, [])
    assert unwrapped(["module.module.a"])[0] == {"module.module.a": "a"}
    assert unwrapped([]) == ({}, [])


def test_names_that_would_become_equal_stay() -> None:
    names = ["_orig_mod.a", "a"]
    renamed, notes = unwrapped(names)
    assert renamed == {name: name for name in names}
    assert "kept as stored" in notes[0]


def test_names_that_only_contain_the_letters_stay() -> None:
    names = ["my_orig_mod.a", "submodule.b"]
    assert unwrapped(names) == ({name: name for name in names}, [])
