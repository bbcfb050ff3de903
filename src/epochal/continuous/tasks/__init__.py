"""What runs in a task: the loop, the exchange between tasks, and their state stores."""
