"""The logistic loss, by numbers worked by hand."""

from tests.losses.critics import FAKE, LOGISTIC, REAL, ROUNDING, close


def test_logistic_terms_are_the_negative_logarithms_of_the_sigmoid():
    terms = LOGISTIC.d_terms(REAL, FAKE)
    assert set(terms) == {"D/loss_reals", "D/loss_fakes"}
    close(terms["D/loss_reals"], [0.3132617, 0.1269280], **ROUNDING)  # -log sigmoid(1), -log sigmoid(2)
    close(terms["D/loss_fakes"], [3.0485874, 0.3132617], **ROUNDING)  # -log(1 - sigmoid(3)), … (-1)
    (term,) = LOGISTIC.g_terms(None, FAKE).values()
    close(term, [0.0485874, 1.3132617], **ROUNDING)  # -log sigmoid(3), -log sigmoid(-1)
