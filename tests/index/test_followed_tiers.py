from gateway.index.followed_tiers import MAX_GROUPS, MAX_MEDIA, FollowedTiers


def test_first_media_and_groups_are_followed_and_no_further_ones() -> None:
    tiers = FollowedTiers()
    assert all(tiers.follow(f"M{i}", 0) for i in range(MAX_MEDIA))
    assert not tiers.follow("GPU", 0)
    assert all(tiers.follow("M0", group) for group in range(MAX_GROUPS))
    assert not tiers.follow("M0", MAX_GROUPS)
    assert tiers.follow("M7", 31)
