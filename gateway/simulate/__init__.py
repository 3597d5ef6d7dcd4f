"""Simulation of whole fleets on a virtual clock: the real router and estimator before discrete-event engines."""
