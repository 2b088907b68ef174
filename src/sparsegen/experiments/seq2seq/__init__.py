"""The sequence-to-sequence experiments: attention by sparse probability maps on translation and summarization."""
