import numpy as np

from solvers.predict.regression.mesh import (
    find_corners,
    interpolate,
    limit_nodes,
    make_nodes,
    mesh_points,
    refine,
)


def test_a_plane_is_interpolated_exactly() -> None:
    axes = (
        np.array([0.0, 1.0, 3.0]),
        np.array([-1.0, 2.0]),
        np.array([5.0, 6.0, 7.0, 9.0]),
    )
    x, y, z = np.meshgrid(*axes, indexing="ij")
    random = np.random.default_rng(0)
    points = np.stack([random.uniform(axis[0], axis[-1], 50) for axis in axes], axis=1)
    found = interpolate(axes, 1.0 + 2.0 * x - 3.0 * y + 0.5 * z, points)
    np.testing.assert_allclose(found, 1.0 + points @ np.array([2.0, -3.0, 0.5]))


def test_a_node_reads_its_own_value_and_beyond_the_ends_the_end_counts() -> None:
    axes = (np.array([0.0, 1.0, 2.0]),)
    table = np.array([10.0, 20.0, 40.0])
    points = np.array([[-7.0], [0.0], [1.0], [2.0], [9.0]])
    np.testing.assert_array_equal(
        interpolate(axes, table, points), [10.0, 10.0, 20.0, 40.0, 40.0]
    )


def test_an_axis_of_one_node_says_the_same_everywhere() -> None:
    axes = (np.array([3.0]), np.array([0.0, 1.0]))
    found = interpolate(
        axes, np.array([[1.0, 2.0]]), np.array([[-5.0, 0.5], [8.0, 0.5]])
    )
    np.testing.assert_array_equal(found, [1.5, 1.5])


def test_weights_sum_to_one() -> None:
    axes = (np.array([0.0, 1.0, 3.0]), np.array([-1.0, 2.0]))
    corners = find_corners(axes, np.random.default_rng(1).normal(0.0, 3.0, (40, 2)))
    np.testing.assert_allclose(corners.weights.sum(axis=1), 1.0)
    assert corners.positions.min() >= 0 and corners.positions.max() <= 5


def test_nodes_are_distinct_ascending_and_no_more_than_allowed() -> None:
    np.testing.assert_array_equal(
        make_nodes(np.array([3.0, 1.0, 1.0 + 1e-12, 2.0]), max_nodes=9), [1.0, 2.0, 3.0]
    )
    thinned = make_nodes(np.arange(100.0), max_nodes=7)
    assert len(thinned) == 7 and thinned[0] == 0.0 and thinned[-1] == 99.0


def test_the_longest_axis_gives_way_where_a_table_would_be_too_large() -> None:
    short, long = limit_nodes((np.arange(3.0), np.arange(50.0)), max_nodes=30)
    np.testing.assert_array_equal(short, np.arange(3.0))
    assert len(long) == 10 and (long[0], long[-1]) == (0.0, 49.0)


def test_refined_axes_keep_their_nodes_and_gaps_become_about_equal() -> None:
    axes = (np.array([0.0, 1.0, 5.0]), np.array([0.0, 2.0]))
    refined = refine(axes, scales=np.array([1.0, 4.0]), max_nodes=400)
    assert 200 < len(refined[0]) * len(refined[1]) <= 400
    for axis, before in zip(refined, axes, strict=True):
        assert np.isclose(axis[:, None], before).any(axis=0).all()
        assert (np.diff(axis) > 0.0).all()
    widest = [
        scale * np.diff(axis).max()
        for axis, scale in zip(refined, (1.0, 4.0), strict=True)
    ]
    assert 0.7 < widest[0] / widest[1] < 1.4


def test_axes_of_a_table_that_is_full_or_one_point_are_not_refined() -> None:
    axes = (np.arange(10.0), np.arange(10.0))
    assert refine(axes, scales=np.ones(2), max_nodes=100) == axes
    assert refine((np.array([1.0]),), scales=np.ones(1), max_nodes=100) == (
        np.array([1.0]),
    )


def test_points_of_a_mesh_stand_in_the_order_of_its_flattened_table() -> None:
    axes = (np.array([1.0, 2.0]), np.array([10.0, 20.0, 30.0]))
    table = axes[0][:, None] + axes[1]
    np.testing.assert_array_equal(mesh_points(axes).sum(axis=1), table.ravel())
    np.testing.assert_array_equal(
        interpolate(axes, table, mesh_points(axes)), table.ravel()
    )
