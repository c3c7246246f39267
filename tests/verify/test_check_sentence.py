"""What a check that failed says."""

from rung.verify.verdict import Check


def test_an_error_is_a_multiple_of_the_models_own_only_where_that_has_one() -> None:
    told = Check("output", "exact", "shape 1, seed 11", 0.2, 1e-6, 2e-5).sentence()
    assert told.startswith("output is off by 2.0e-01, 200000x the untouched model's own error of 1.0e-06; 2.0e-05 is")
    told = Check("output", "exact", "shape 1, seed 11", 0.2, 0.0, 2e-6).sentence()
    assert told == (
        "output is off by 2.0e-01, where the untouched model's own error is 0; 2.0e-06 is allowed (exact, shape 1, seed 11)"
    )
