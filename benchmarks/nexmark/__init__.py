"""The Nexmark suite: an auction site's events, and 23 queries over them."""
