"""Before an upgrade: will a changed query start on a checkpoint, and will its results be right?"""
