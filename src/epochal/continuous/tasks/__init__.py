"""What runs in a task: its loop, the exchange between tasks, and the state stores."""
