"""Policy arms against workloads on a virtual clock: the real router and estimator, engines as discrete events."""
