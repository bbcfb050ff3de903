"""`epochal demo`: a query on an embedded broker, a killed worker, and a check of the results.

Note: the demo is a user of the product, not a part of it. It uses only the public API.
"""
