"""``aloft eval``: how well a model predicts a text, and how much of another model's accuracy it keeps."""
