from collections import Counter

from olmes_monitor.measure.domains import DOMAINS, domains_of


def test_57_subjects_in_four_domains_as_the_authors_have_them():
    assert Counter(DOMAINS.values()) == {"stem": 18, "humanities": 13, "social_sciences": 12, "other": 14}
    known = {
        "anatomy": "other",
        "econometrics": "social_sciences",
        "formal_logic": "humanities",
        "prehistory": "humanities",
    }
    assert known.items() <= DOMAINS.items()


def test_domains_are_given_only_if_all_subjects_are_mmlus():
    assert domains_of(["virology", "astronomy"]) == ["other", "stem"]
    assert domains_of(["virology", "gardening"]) is None
    assert domains_of(["", ""]) is None
    assert domains_of([]) is None
