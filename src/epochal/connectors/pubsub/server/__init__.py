"""The embedded Pub/Sub server: quick starts, tests and benchmarks without Google's cloud.

`broker` and `deliveries` decide everything and import nothing that acts: time is an argument.
`service` and `stream` are the gRPC edge. Nothing is durable: what the process knows ends with it.
"""
