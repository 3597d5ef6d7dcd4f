"""The way to the back ends: pools, endpoints and their health, the queue, attempts, and two HTTP connectors."""
