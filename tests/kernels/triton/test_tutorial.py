"""The tutorial's kernels."""

from interpreted import PUBLIC_FUNCTION, run_interpreted


def test_public_function_takes_any_shape_and_dim_and_differentiates():
    run_interpreted(PUBLIC_FUNCTION.format(module="tutorial"))
