"""What was predicted beside what engines say: asked for (`asking`), compared (`exactness`), explained."""
