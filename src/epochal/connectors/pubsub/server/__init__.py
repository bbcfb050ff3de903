"""The embedded Pub/Sub server, for quick starts, tests and benchmarks without Google's cloud.

`broker` and `deliveries` make all decisions. They are pure, and get the time as an argument.
`service` and `pubsub_server` handle gRPC. All state is in memory and is lost when the process ends.
"""
