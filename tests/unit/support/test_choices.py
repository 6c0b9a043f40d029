"""The message about a name that is not one of the choices."""

from systolic.support.choices import unknown_name


def test_the_most_similar_choice_is_suggested_and_all_are_listed() -> None:
    assert (
        unknown_name("chip", "v7", ["v4", "v7x"], aliases=["trillium"])
        == "chip 'v7' is unknown; did you mean v7x? choose from v4, v7x"
    )


def test_an_alias_is_suggested_and_not_listed() -> None:
    message = unknown_name("chip", "trilium", ["v4"], aliases=["trillium"])
    assert message == "chip 'trilium' is unknown; did you mean trillium? choose from v4"


def test_a_name_like_no_other_is_only_answered_with_the_choices() -> None:
    assert unknown_name("kind=", "\x1b", ["dsd", "sdd"]) == "kind='\\x1b' is unknown; choose from dsd, sdd"
