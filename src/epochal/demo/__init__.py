"""`epochal demo`: the main job on embedded defaults, a killed worker, and the balance.

What a reader would get wrong: nothing here is part of the product. It is a user of it, and uses
only what any user has.
"""
