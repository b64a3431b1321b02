"""Who may use the server of the page."""

import pytest

from pggan.sampling.explore.access import Access, is_local


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.9.9.9", True)]
)
def test_addresses_of_this_machine_need_no_token(host, local):
    assert is_local(host) is local
    assert Access.of(host, 80).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "127.0.0.1.example.org", ""])
def test_all_others_get_one_of_their_own(host):
    assert not is_local(host)
    tokens = {Access.of(host, 80).token for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) >= 20 for token in tokens)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"Host": "127.0.0.1:80"}, True),
        ({"Host": "LOCALHOST:80", "Origin": "http://LOCALHOST:80"}, True),
        ({"Host": "[::1]:80"}, True),
        ({"Host": "localhost:9000", "Origin": "http://localhost:9000"}, True),  # through a tunnel
        ({"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:81"}, False),  # another program's page
        ({"Host": "127.0.0.1.attacker.example:80"}, False),
        ({"Host": "attacker.example:80"}, False),  # a name that was made to point here
        ({"Host": "127.0.0.1:80", "Origin": "http://attacker.example"}, False),
        ({"Host": "127.0.0.1:80", "Origin": "null"}, False),
        ({}, False),
    ],
)
def test_a_local_server_answers_to_its_own_name_and_page(headers, allowed):
    assert (Access.of("127.0.0.1", 80).refusal(headers) is None) is allowed


def test_an_open_server_answers_to_those_who_have_the_token():
    access = Access.of("0.0.0.0", 80)
    host = {"Host": "192.168.1.4:80"}
    assert access.refusal(host | {"Cookie": f"other=1; {access.cookie}={access.token}"}) is None
    for cookie in (
        "",
        f"{access.cookie}=",
        f"{access.cookie}={access.token}x",
        f"pggan-81={access.token}",
        "=;;=\x00",
        "é",
    ):
        assert "token" in access.refusal(host | {"Cookie": cookie})
    assert access.refusal(host | {"Cookie": f"{access.cookie}={access.token}", "Origin": "http://a.example"})
