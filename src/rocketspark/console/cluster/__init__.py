"""The cluster as the console asks it: by operations of admin alone, at a pace, each answer shared for a moment. Imports
admin. Start with view.
"""
